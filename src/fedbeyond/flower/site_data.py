"""The data and the secret of one site: its own domain, split as a simulation would split it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..data.partition.assignment import Rows, preprocess_split, select_rows
from ..data.partition.splits import assign_clients, unseen_rows
from ..errors import ConfigError, DataError, FederationError
from ..experiment.build import dataset, rules
from ..experiment.config import Config
from ..images import Dataset, Split
from .site_config import MIN_SECRET, SiteConfig


def own_domain(site_config: SiteConfig) -> Dataset:
    """Load the dataset of a site, reduced to the site's own domain."""
    site, data = site_config.site, site_config.data
    domains, domain = dataset(data), site_config.domain or site
    if domain not in domains.images:
        named = "name one of them in the site's config, as in domain='...'"
        if site_config.role == "train":
            named = f"rename one of them to {site!r}: a site trains on the domain with its name; with "
            named += "train.clients_per_domain, on that of domain='...' in the site's config"
        raise DataError(f"site {site!r}: {data} has no domain {domain!r}; it has {', '.join(domains.images)}; {named}")
    if site_config.classes and set(site_config.classes) != set(domains.classes):
        differences = {
            "lacks": set(site_config.classes) - set(domains.classes),
            "has": set(domains.classes) - set(site_config.classes),
        }
        differing = ", ".join(f"{verb} {', '.join(sorted(names))}" for verb, names in differences.items() if names)
        raise DataError(
            f"site {site!r} {differing}; the federation's classes are {', '.join(site_config.classes)}: rename the "
            "site's classes, or agree on others"
        )
    return replace(domains, images={domain: domains.images[domain]})


def site_splits(site_config: SiteConfig, config: Config, domains: Dataset) -> dict[str, Split]:
    """Return the splits of a site, or the test split of a guest: the same rows that a simulation gives it."""
    rows = split_rows(site_config, config, domains)
    splits = {part: select_rows(domains, some) for part, some in rows.items()}
    known = splits["test" if site_config.role == "guest" else "train"]  # missing values are filled in from these rows
    return {part: preprocess_split(domains, split, known) for part, split in splits.items()}


def split_rows(site_config: SiteConfig, config: Config, domains: Dataset) -> dict[str, Rows]:
    """Return the rows of each split of a site; under train.disjoint = "groups" no group is in two of them."""
    (domain,) = domains.images
    if site_config.role == "guest":
        return {"test": {domain: unseen_rows(domains, domain, rules(config.train))}}
    if config.train.disjoint and not domains.note(domain).groups:
        raise FederationError(  # its text may leave: it has nothing of the data
            f"site {site_config.site!r} names no groups (patients, cases or slides), and train.disjoint = 'groups' "
            "keeps them together; name them in the site's data, as in folder(root='/data', groups='^([^_]+)_'), "
            "npz(..., groups=patient) or table(..., groups=patient), or leave train.disjoint out of the run"
        )
    clients = assign_clients(domains, [domain], config.seed, rules(config.train))
    if site_config.site not in clients:
        raise ConfigError(
            f"site {site_config.site!r} is not a client of {domain!r}, whose clients are {', '.join(clients)}; rename "
            "the site, or set train.clients_per_domain"
        )
    own = clients[site_config.site]
    return {"train": own.train, "val": own.val} | ({"local_test": own.test} if own.test else {})


def count_groups(domains: Dataset, rows: Mapping[str, Rows]) -> dict[str, int]:
    """Count the groups (patients, cases or slides) in each split of a site; empty if the site's data name none."""
    ((domain, groups),) = ((name, np.array(domains.note(name).groups)) for name in domains.images)
    return {part: len(np.unique(groups[some[domain]])) for part, some in rows.items()} if len(groups) else {}


def read_secret(site_config: SiteConfig) -> bytes:
    """Read the secret from which a site draws its noise; a server that knew it could subtract the noise."""
    if site_config.secret is None:
        raise ConfigError(
            f"site {site_config.site!r} has no secret, and noise that a server can compute protects nothing; create "
            "one with 'head -c 32 /dev/urandom > secret; chmod 600 secret' and name it in site.toml, as in "
            'secret = "secret" (secret = "" goes without, for a test)'
        )
    if not site_config.secret:
        return b""
    try:
        secret = Path(site_config.secret).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"site {site_config.site!r}: its secret cannot be read: {error}; see 'secret' in site.toml"
        ) from None
    if len(secret) < MIN_SECRET:
        raise ConfigError(
            f"{site_config.secret} has {len(secret)} bytes, a secret needs {MIN_SECRET} or more; create one with "
            "head -c 32 /dev/urandom"
        )
    return secret
