"""Networks: classifiers, generators, pretrained weights, BatchNorm."""
