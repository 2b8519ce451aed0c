"""What the laws need to know of single methods: quicker settings, refusals, and options that must each do something."""

SMALL = {  # the same methods, quicker: less to train, and no warm-up that outlasts a law's three rounds
    "fedadg": "fedadg(classify=1, align=1)",
    "ndag": "ndag(width=4, warmup=1)",
    "feddag": "feddag(width=4, warmup=1)",
    "csac": "csac(pretrain=1, width=4)",
    "fccl": "fccl(images=8, batch=8, pretrain=1)",
}

REFUSED = [  # the server weighs for itself, or there is one site
    *["feddag+ga", "feddag+sha"],
    *["local+ga", "local+sha"],
    *["erm+ga", "erm+sha"],
    *["csac+ga", "csac+sha"],
]

SWITCHES = {  # a method's spelling, and options that must each change the model that comes out of it
    "fedavg": ["weighting=uniform"],
    "fedprox": ["mu=0.5"],
    "fednova": ["mu=0.5"],
    "fedavg+ga": [
        "step=0", "step=0.2", "decay=false", "metric=accuracy", "center=false", "norm=max", "shared_step=true",
    ],
    "fedsb(budget=2)": ["smoothing=0", "smoothing=0.3", "budget=none", "budget=4", "fresh=false"],
    "fedgca(beta=1)": [
        "views=0", "views=3", "alpha=0", "alpha=1", "beta=0", "pg=false", "p=false, pg=false", "mg=false",
        "m=false, mg=false", "form=kl", "form=js", "detach_mean=true", "repeats=1", "chains=2", "output=corrected",
    ],
    "ndag(width=4, warmup=0, decay=0.5)": [
        "alpha=0", "alpha=0.6", "margin=0.001", "width=8", "decay=0.9", "kind=1", "kind=2", "learn=generated",
        "warmup=2",
    ],
    "feddag(width=4, warmup=0, decay=0.5, beta=3, rho=0.5)": [
        "alpha=0", "learn=generated", "kind=1", "rho=0", "norm=linf", "beta=0", "history=0", "evaluators=1",
        "exclude_self=true", "warmup=2",
    ],
    "fedavg+sha(beta=3, rho=0.5)": [
        "rho=0", "norm=linf", "beta=0", "history=0", "evaluators=1", "exclude_self=true", "warmup=2",
    ],
    "fedadg(classify=1, align=1, adversarial=0.5)": [
        "classify=2", "align=2", "adversarial=0", "adversarial=0.85", "smoothing=0", "one_hot=0", "one_hot=0.5",
        "projection=trained", "projection=none", "reference=normal", "reference=uniform", "reference=laplace",
        "discriminator_loss=paper", "generator_loss=away", "generator_loss=none", "generator_rate=3",
        "discriminator_rate=3",
    ],
    "csac(pretrain=1, width=4)": ["weight=0", "weight=3", "fusion=uniform", "pretrain=2", "smoothing=0", "width=8"],
    "g2g(top=1)": ["alpha=1", "beta=1", "top=none"],
    "fccl(images=16, batch=8, pretrain=1)": [
        "images=0", "images=24", "batch=16", "public_rate=1", "off_diagonal=0", "intra=0", "inter=0", "pretrain=2",
    ],
    "fedavg+rc": ["views=0", "views=2", "sizes=[3]", "mix=false"],
    "fedavg+am": ["strength=0.1", "chance=1"],
}  # fmt: skip
