"""Stochastic gradient descent."""

from numtrans.cache_blocks import in_blocks
from numtrans.optim.optimizer import Optimizer


class SGD(Optimizer):
    r"""Stochastic gradient descent with momentum.

    .. math::

        g' = g + \lambda \theta, \qquad m \leftarrow \mu m + g', \qquad
        \theta \leftarrow \theta - \eta\, m \quad \text{or, for Nesterov,} \quad
        \theta \leftarrow \theta - \eta\, (g' + \mu m)

    The first step has :math:`m = g'`. Without momentum the step is :math:`\eta g'`.

    Parameters
    ----------
    params : list of Parameter, or list of dict
        See `Optimizer`.
    lr : float
        Learning rate :math:`\eta`.
    momentum : float, default 0.0
        :math:`\mu`.
    nesterov : bool, default False
        Look ahead: needs momentum.
    weight_decay : float, default 0.0
        :math:`\lambda`, added to the gradient (L2).

    References
    ----------
    Sutskever et al. (2013), On the importance of initialization and momentum in deep learning (the form without its
    damping, as in PyTorch).
    """

    def __init__(self, params, lr, momentum=0.0, nesterov=False, weight_decay=0.0):
        super().__init__(params, lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay)
        if any(group["nesterov"] and not group["momentum"] for group in self.groups):
            raise self._error("nesterov needs momentum above 0")

    def state_names(self, group):
        return ("m",) if group["momentum"] else ()

    def update(self, parameter, state, group):
        lr, momentum, decay = group["lr"], group["momentum"], group["weight_decay"]
        moments = [state[name] for name in self.state_names(group)]
        for p, *m, g in in_blocks((parameter.data, *moments), (parameter.grad,)):
            if decay:
                g = g + decay * p
            if momentum:
                m[0] *= momentum
                m[0] += g
                g = g + momentum * m[0] if group["nesterov"] else m[0]
            p -= lr * g
