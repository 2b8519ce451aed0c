"""The federated methods and their references, one self-contained file each."""

from .._factory import places

PLACES = {
    # federated optimisation
    **places("methods.*", "fedavg fedavgm"),
    **places("methods.fedopt", "fedadam fedyogi fedadagrad"),
    **places("methods.*", "fedprox fednova scaffold feddyn fedsam moon perfedavg fedbn"),
    # weighting of the clients
    **places("methods.*", "arfl afl fedcsa fedgma"),
    # federated domain generalization
    **places("methods.*", "fedsb fedgca fedadg feddag ndag fedsr fediir harmofl elcfs ccst csac g2g fccl"),
    # domain generalization inside each site
    **places("methods.*", "rsc jigen mixup randconv ddaig ats"),
    # references: no federation
    **places("methods.*", "local erm dann coral mmd irm vrex groupdro"),
}
