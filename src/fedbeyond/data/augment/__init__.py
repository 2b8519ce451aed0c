"""Augmentations of images: style, colours, spectra, AugMix, standard transforms."""
