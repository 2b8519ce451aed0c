"""FedSAM: FedAvg under SAM, whatever optimizer the run has."""

import math

import pytest
from pytest import approx

from fedbeyond.errors import ConfigError
from fedbeyond.experiment import registry
from fedbeyond.methods.fedavg import fedavg
from fedbeyond.methods.fedsam import fedsam
from fedbeyond.optimizers import adam, sam, sgd, sharp
from support.asserts import assert_equal, model
from support.by_hand import play_rounds, slope, weight


def test_a_round_by_hand():
    # of one weight the gradient's direction is its sign: each step goes by the slope rho further uphill
    rho, ends = 0.3, {}
    for site in ("a", "b"):
        w = 0.0
        for _ in range(2):
            w -= 0.5 * slope(w + rho * math.copysign(1.0, slope(w, site)), site)
        ends[site] = w
    (state,) = play_rounds(fedsam(rho, optimizer=sgd(0.5)), 1, epochs=2)
    assert weight(state) == approx((ends["a"] + 3 * ends["b"]) / 4, abs=1e-6)


def test_it_is_fedavg_under_sam_to_the_bit():
    options = {"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4}
    assert_equal(model(fedsam(0.1, optimizer=sgd(**options))), model(fedavg(optimizer=sam(0.1, **options))))
    assert_equal(model(fedsam(0.1, optimizer=adam())), model(fedavg(optimizer=sharp(adam(), 0.1))))


def test_without_rho_it_is_fedavg_to_the_bit():
    assert_equal(model(fedsam(0.0)), model(fedavg()))


def test_its_own_rho_takes_the_place_of_the_runs():
    assert_equal(model(fedsam(0.1, optimizer=sam(rho=0.5))), model(fedsam(0.1)))


def test_rho_below_zero_is_refused():
    with pytest.raises(ConfigError, match="is not valid"):
        registry.build("fedsam(rho=-0.1)")
