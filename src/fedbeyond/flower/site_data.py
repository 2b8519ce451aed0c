"""The data and the secret of one site: its own domain, split as a simulation would split it."""

from pathlib import Path

from ..data.partition.assignment import Partition, build_splits, local_tests, preprocess_split, select_rows
from ..data.partition.splits import assign_clients, unseen_rows
from ..errors import ConfigError, DataError
from ..experiment.build import dataset, rules
from ..experiment.config import Config
from ..images import Domains, Split
from .site_config import SiteConfig

MIN_SECRET = 32  # bytes


def own_domain(site_config: SiteConfig) -> Domains:
    """Load the dataset of a site, reduced to the site's own domain."""
    site, data = site_config.site, site_config.data
    domains, domain = dataset(data), site_config.domain or site
    if domain not in domains.images:
        raise DataError(
            f"site {site!r}: {data} has no domain {domain!r}; it has {', '.join(domains.images)}. Name one of them in "
            "the site's config, as in domain='...'"
        )
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
    return domains._replace(images={domain: domains.images[domain]})


def site_splits(site_config: SiteConfig, config: Config, domains: Domains) -> dict[str, Split]:
    """Return the splits of a site, or the test split of a guest: the same rows that a simulation gives it."""
    (domain,) = domains.images
    if site_config.role == "guest":
        unseen = select_rows(domains, {domain: unseen_rows(domains, domain, rules(config.train))})
        return {"test": preprocess_split(domains, unseen, unseen)}
    clients = assign_clients(domains, [domain], config.seed, rules(config.train))
    if site_config.site not in clients:
        raise ConfigError(
            f"site {site_config.site!r} is not a client of {domain!r}, whose clients are {', '.join(clients)}; rename "
            "the site, or set train.clients_per_domain"
        )
    alone = Partition({site_config.site: clients[site_config.site]}, {})
    tests = {"local_test": split for split in local_tests(domains, alone).values()}  # noqa: B035 (one, or none)
    return build_splits(domains, alone)[0][site_config.site] | tests


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
