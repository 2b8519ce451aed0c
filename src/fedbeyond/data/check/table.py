"""`fedbeyond data check` for tables: the kind of each column, the rows of each site, and what is wrong with them."""

from inspect import signature
from pathlib import Path

from ...errors import ConfigError, DataError, MissingError, nearest
from ...spec import Part, parse
from ..datasets._folder import is_image
from ..datasets._table import Texts, no_features, row_groups, survey, table
from ..datasets.columns import Names, canonical, inspect_label, is_missing, rare_classes, sort_categories
from ..datasets.table_rows import Record, by_column, by_file, read_records
from ..datasets.table_summary import summary
from ..finding import Finding, count_findings, printable, report_lines

NOT_TABLES = {".npz", ".zip", ".tar", ".gz", ".tgz", ".7z", ".rar", ".pkl", ".h5", ".hdf5", ".mat", ".npy"}
NO_SITE = "all"  # stands for the sites of a file while the column of sites is not known


def is_table(given: str) -> bool:
    """Return whether a path is that of a table, or a `table(...)` as in a configuration."""
    path = Path(given).expanduser()
    if given.startswith("table(") or ("*" in given and not path.exists()):
        return True
    return path.is_file() and path.suffix.lower() not in NOT_TABLES and not is_image(path.name)


def check_table(given: str) -> tuple[str, bool]:
    """Return a report on a CSV file or a `table(...)`, and whether there are no findings."""
    from pydantic import ValidationError, validate_call

    part = parse(given)[0] if given.startswith("table(") else Part("table", options={"path": given})
    known = signature(table).parameters
    for key in part.options:
        if key not in known:
            raise ConfigError(f"table has no option {key!r}; {nearest(key, known)}")
    try:
        return validate_call(_check)(**part.options)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"table: {first['loc'][0]}={first['input']!r} is not valid: {first['msg']}") from None


def _check(
    path: str = "",
    label: str = "",
    site: str = "",
    columns: Names = (),
    categorical: Names = (),
    drop: Names = (),
    missing: Texts = (),
    groups: str = "",
) -> tuple[str, bool]:
    try:
        records = _read(path, site, columns, tuple(map(str, missing)))
        features, findings = survey(records, path, label, categorical, no_features(drop, site, label, groups))
        for rows in records.values() if groups else ():
            row_groups(rows, groups, path)
    except MissingError:
        raise
    except DataError as error:
        problem = Finding("unreadable: training would stop with this error", [str(error)], "fix it, then check again")
        return _report([f"{path}: a table"], [problem])
    rows = [record for site_rows in records.values() for record in site_rows]
    lines = [f"{path}: a table of {len(rows):,} rows and {len(rows[0].values)} columns"]
    classes: Names = ()
    if label:
        labelled = [cell for row in rows if not is_missing((cell := row.cell(label)).value)]
        classes = sort_categories({canonical(cell.value) for cell in labelled})
        wrong_label = any(not finding.note for finding in inspect_label(label, [row.cell(label) for row in rows]))
        findings += [] if wrong_label else rare_classes(label, labelled)
    if label and len(records) == 1 and NO_SITE not in records:
        findings.append(Finding("one site: training needs two, one of them unseen", list(records), "add another site"))
    if not label or NO_SITE in records:
        lacking = " and ".join(name for name, here in (("site", NO_SITE not in records), ("label", label)) if not here)
        command = f"fedbeyond data check \"table(path='{path}', site=COLUMN, label=COLUMN)\""
        findings.append(Finding(f"not checked: {lacking}", [command], "name their columns in that command", note=True))
    return _report([*lines, "", *summary(records, features, label, classes)], findings)


def _read(path: str, site: str, columns: Names, missing: Names) -> dict[str, list[Record]]:
    """Read a table; without a column of sites, all rows of a file belong to one."""
    if "*" in path:
        return by_file(path, columns, missing)
    if site or not Path(path).expanduser().is_file():
        return by_column(path, site, columns, missing)
    return {NO_SITE: read_records(Path(path).expanduser(), columns, missing)}


def _report(lines: list[str], findings: list[Finding]) -> tuple[str, bool]:
    text = "\n".join([*lines, *report_lines(findings), "", count_findings(findings)]) + "\n"
    return printable(text), all(finding.note for finding in findings)
