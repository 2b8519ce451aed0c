"""What the laws need to know of single methods: quicker settings, refusals, and options that must each do something."""

import re

import pytest

SMALL = {  # the same methods, quicker: less to train, and no warm-up that outlasts a law's three rounds
    "fedsb": "fedsb(budget=3)",
    "fedadg": "fedadg(classify=0, align=1)",
    "ndag": "ndag(width=2, warmup=1)",
    "feddag": "feddag(width=2, warmup=1)",
    "csac": "csac(pretrain=1, width=4)",
    "fccl": "fccl(images=8, batch=8, pretrain=1)",
    "ddaig": "ddaig(width=2, warmup=1)",
    "ats": "ats(width=2, warmup=1)",
}

# a method of each sort: plain, private state, own sampler, a corrected model, several requests and stored models, own
# networks, a second network, private layers, gradients of gradients
REPRESENTATIVE = ("fedavg", "scaffold", "fedsb", "fedgca", "feddag", "fedadg", "moon", "fedbn", "perfedavg")

REFUSED = [  # the server weighs for itself, there is one site, or nothing would come of it
    *["feddag+ga", "feddag+sha"],
    *["local+ga", "local+sha"],
    *["erm+ga", "erm+sha"],
    *[f"{name}+{rule}" for name in ("dann", "coral", "mmd", "irm", "vrex", "groupdro") for rule in ("ga", "sha")],
    *[f"{name}+dp" for name in ("erm", "dann", "coral", "mmd", "irm", "vrex", "groupdro")],  # nothing leaves
    "fccl+dp",  # asks by how many public images there are, which must not be blurred
    *["arfl+ga", "arfl+sha"],
    *["afl+ga", "afl+sha"],
    *["csac+ga", "csac+sha"],
    "harmofl+am",  # gives every image the same amplitudes, whatever they were mixed with before
]

# channels that hardly vary are normalised, by which rounding grows: in float64 ats+ga is symmetric to 1e-15, in float32
# to 1e-3; so whether the order of clients matters is seen without it
ROUGH = {"ats(width=2, warmup=1)": "ats(width=2, warmup=1, statistics=average)"}

SHARP = ["fedsam", "harmofl"]  # look uphill of their own accord: under SAM they keep their own rho

FAINT = {  # what does something at its defaults, but not on the toy
    "fedsr+sha": "fedsr+sha(beta=3)",  # less than the 1e-5 that counts: 9e-6, where nothing is 0
    "fedsb(budget=3)+sha": "fedsb(budget=3)+sha(beta=3)",
}

SWITCHES = {  # a method's spelling, and options that must each change the model that comes out of it
    "fedavg": ["weighting=uniform"],
    "fedprox": ["mu=0.5"],
    "fednova": ["mu=0.5"],
    "fedavg+ga": [
        "step=0", "step=0.2", "decay=false", "metric=accuracy", "center=false", "shared_step=true",
    ],
    "fedsb(budget=3)+ga(step=0.2)": ["norm=max"],
    "fedsb(budget=2)": ["smoothing=0", "smoothing=0.3", "budget=none", "budget=4", "fresh=false"],
    "fedgca(beta=1)": [
        "views=0", "views=3", "alpha=0", "alpha=1", "beta=0", "pg=false", "p=false, pg=false", "mg=false",
        "m=false, mg=false", "form=kl", "form=js", "detach_mean=true", "repeats=1", "chains=2", "output=corrected",
    ],
    "ndag(width=4, warmup=0, decay=0.5)": [
        "alpha=0", "alpha=0.6", "margin=0.001", "width=8", "decay=0.9", "kind=1", "kind=2", "learn=generated",
        "warmup=2", "statistics=average", "space=input", "clamp=true",
    ],
    "feddag(width=4, warmup=0, decay=0.5, beta=3, rho=0.5)": [
        "alpha=0", "learn=generated", "kind=1", "rho=0", "norm=linf", "beta=0", "history=0", "evaluators=1",
        "exclude_self=true", "warmup=2", "statistics=average", "space=input", "clamp=true",
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
    "fedavg+rc": ["views=0", "views=2", "sizes=[3]", "mix=false", "keep=0.5"],
    "dann": ["weight=0", "weight=0.1", "ramp=true", "width=8"],
    "coral": ["weight=0", "weight=10", "means=false"],
    "mmd": ["weight=0", "weight=10", "gammas=[1.0]"],
    "irm": ["weight=0", "weight=1", "anneal=0", "rescale=false", "unbiased=true"],
    "vrex": ["weight=0", "weight=1", "anneal=0", "rescale=false"],
    "groupdro": ["eta=0", "eta=1"],
    "arfl": ["strength=0.1"],
    "afl": ["step=0", "step=0.5"],
    "fedgma": ["tau=0", "rate=0.5"],
    "fedsr(l2r=0.1, cmi=0.1)": ["l2r=0", "l2r=0.5", "cmi=0", "cmi=0.5", "square=true", "share_r=true"],
    "fediir(gamma=0.5)": ["gamma=0", "gamma=2", "keep=0", "from_zero=true"],
    "csac(pretrain=1, width=4)": ["weight=0", "weight=3", "fusion=uniform", "pretrain=2", "smoothing=0", "width=8"],
    "g2g(top=1)": ["alpha=1", "beta=1", "top=none"],
    "fccl(images=16, batch=8, pretrain=1)": [
        "images=0", "images=24", "batch=16", "public_rate=1", "off_diagonal=0", "intra=0", "inter=0", "pretrain=2",
    ],
    "fedavg+am": ["strength=0.1", "chance=1"],
    "fedavg+dp": ["clip=0.5", "noise=0", "noise=2"],
    "fedavgm": ["momentum=0", "rate=0.5"],
    "fedadam": ["rate=0.1", "beta1=0", "beta2=0.5", "tau=0.1"],
    "fedyogi": ["rate=0.1", "beta1=0", "beta2=0.5", "tau=0.1"],
    "fedadagrad": ["rate=0.01", "beta1=0.9", "tau=0.1"],
    "feddyn": ["alpha=1", "output=corrected"],
    "fedsam": ["rho=0", "rho=0.5"],
    "moon": ["mu=0", "mu=5", "temperature=0.1", "width=8"],
    "perfedavg": ["alpha=0", "alpha=0.1"],
    "harmofl": ["window=0", "rho=0", "rho=0.5"],
    "elcfs(step=0.1)": ["window=1", "ratio=1", "spectra=1", "views=1", "step=0.5", "order=full"],
    "ccst": ["style=single", "share=1", "stage=2", "every=1"],
    "ccst(style=single)": ["images=2"],
    "randconv": ["copies=2", "weight=0", "sizes=[3]", "mix=false", "keep=0.5", "nested=true"],
    "fedavg+mixstyle": ["depth=1", "alpha=1", "chance=1"],
    "fedavg+augmix": ["views=0", "views=2", "width=1", "depth=1", "severity=10"],
    "rsc": ["places=0.1", "channels=0.7", "samples=0", "samples=1", "grow=0.6", "coin=1", "where=features"],
    "jigen": ["weight=0", "weight=2", "orders=9", "whole=0.5"],
    "mixup": ["alpha=0", "alpha=1"],
    "ddaig(width=4, warmup=0)": ["strength=1", "share=0.2", "width=8", "domains=network", "warmup=2"],
    "ats(width=4, warmup=0, decay=0.5)": ["margin=0.3", "width=8", "decay=0.9", "learn=generated", "warmup=2",
        "statistics=average",
    ],
}  # fmt: skip


def combined(cases):
    """Mark cases of methods that are not representative as slow; a case is a spec, or a tuple that begins with one."""
    marked = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        representative = re.split(r"[+(:]", values[0])[0] in REPRESENTATIVE
        marked.append(pytest.param(*values, marks=() if representative else pytest.mark.slow))
    return marked
