"""Adam, and AdamW, which keeps weight decay out of the gradient."""

import math

from numtrans.backend import get_xp
from numtrans.cache_blocks import in_blocks
from numtrans.optim.optimizer import Optimizer


class Adam(Optimizer):
    r"""Adam: steps of about the learning rate, whatever the size of the gradient.

    .. math::

        m \leftarrow \beta_1 m + (1 - \beta_1) g, \qquad v \leftarrow \beta_2 v + (1 - \beta_2) g^2, \qquad
        \theta \leftarrow \theta - \eta\, \frac{\hat m}{\sqrt{\hat v} + \epsilon}, \qquad
        \hat m = \frac{m}{1 - \beta_1^t}, \quad \hat v = \frac{v}{1 - \beta_2^t}

    m and v start at 0, which draws them towards 0; the divisors take that out again. t counts the steps of each
    parameter from 1. :math:`\epsilon` is added after the correction, outside the root.

    Parameters
    ----------
    params : list of Parameter, or list of dict
        See `Optimizer`.
    lr : float, default 1e-3
        Learning rate :math:`\eta`.
    betas : (float, float), default (0.9, 0.999)
        :math:`\beta_1, \beta_2`.
    eps : float, default 1e-8
        :math:`\epsilon`.
    weight_decay : float, default 0.0
        :math:`\lambda`: adds :math:`\lambda \theta` to the gradient (L2).

    References
    ----------
    Kingma and Ba (2015), Adam: A Method for Stochastic Optimization, arXiv:1412.6980.
    """

    decoupled = False

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    def state_names(self, group):
        return ("m", "v")

    def update(self, parameter, state, group):
        xp = get_xp(parameter.data)
        lr, decay, eps = group["lr"], group["weight_decay"], group["eps"]
        beta1, beta2 = group["betas"]
        step_size = lr / (1 - beta1 ** state["step"])
        root2 = math.sqrt(1 - beta2 ** state["step"])
        for p, m, v, g in in_blocks((parameter.data, state["m"], state["v"]), (parameter.grad,)):
            # 1. weight decay
            if decay and self.decoupled:
                p *= 1 - lr * decay
            elif decay:
                g = g + decay * p
            # 2. m = beta1 m + (1 - beta1) g
            u = g - m
            u *= 1 - beta1
            m += u
            # 3. v = beta2 v + (1 - beta2) g^2
            xp.multiply(g, g, out=u)
            u -= v
            u *= 1 - beta2
            v += u
            # 4. u = lr mhat / (sqrt(vhat) + eps), with sqrt(vhat) = sqrt(v) / root2
            xp.sqrt(v, out=u)
            u += eps * root2
            xp.divide(m, u, out=u)
            u *= step_size * root2
            p -= u


class AdamW(Adam):
    r"""Adam with decoupled weight decay: each step first shrinks the weights,

    .. math:: \theta \leftarrow (1 - \eta \lambda)\, \theta,

    and then steps as `Adam` does. Added to the gradient instead, the decay would be divided by :math:`\sqrt{\hat v}`
    and so be weakest where gradients are large. The order of the operations is that of PyTorch.

    Parameters
    ----------
    params, lr, betas, eps
        See `Adam`.
    weight_decay : float, default 0.01
        :math:`\lambda`. `no_decay` makes the usual groups.

    References
    ----------
    Loshchilov and Hutter (2019), Decoupled Weight Decay Regularization, arXiv:1711.05101.
    """

    decoupled = True

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
