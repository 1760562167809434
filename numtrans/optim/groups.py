"""Parameter groups for weight decay."""


def no_decay(module, weight_decay):
    """Two groups for an optimizer: matrices decay; biases, norm gains and norm shifts do not.

    A parameter decays if it has two or more axes. Every parameter, a tied one too, is in exactly one group.

    Parameters
    ----------
    module : Module
    weight_decay : float
        For the group that decays.

    Returns
    -------
    list of dict
        ``[{"params": matrices, "weight_decay": weight_decay}, {"params": the rest, "weight_decay": 0.0}]``

    Examples
    --------
    >>> optimizer = AdamW(no_decay(model, 0.1), lr=3e-4)  # doctest: +SKIP
    """
    parameters = module.parameters()
    return [
        {"params": [p for p in parameters if p.data.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.data.ndim < 2], "weight_decay": 0.0},
    ]
