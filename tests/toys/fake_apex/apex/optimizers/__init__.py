"""The fused optimizers with the arguments that apex publishes. They do on the CPU what torch's do."""

import torch

from .. import calls


class FusedAdam(torch.optim.AdamW):
    def __init__(
        self,
        params,
        lr=1e-3,
        bias_correction=True,
        betas=(0.9, 0.999),
        eps=1e-8,
        adam_w_mode=True,
        weight_decay=0.0,
        amsgrad=False,
        set_grad_none=True,
        capturable=False,
        master_weights=False,
    ):
        if amsgrad:
            raise RuntimeError("FusedAdam does not support the AMSGrad variant.")
        calls.append(("FusedAdam", adam_w_mode))
        super().__init__(params, lr, betas, eps, weight_decay)


class FusedLAMB(torch.optim.Adam):
    def __init__(
        self,
        params,
        lr=1e-3,
        bias_correction=True,
        betas=(0.9, 0.999),
        eps=1e-6,
        weight_decay=0.01,
        amsgrad=False,
        adam_w_mode=True,
        grad_averaging=True,
        set_grad_none=True,
        max_grad_norm=1.0,
        use_nvlamb=False,
    ):
        calls.append(("FusedLAMB", weight_decay, max_grad_norm))
        super().__init__(params, lr, betas, eps, weight_decay)


class FusedNovoGrad(torch.optim.Adam):
    def __init__(
        self,
        params,
        lr=1e-3,
        bias_correction=True,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=0.0,
        amsgrad=False,
        reg_inside_moment=False,
        grad_averaging=True,
        norm_type=2,
        init_zero=False,
        set_grad_none=True,
    ):
        calls.append(("FusedNovoGrad", betas, grad_averaging))
        super().__init__(params, lr, betas, eps, weight_decay)


class FusedSGD(torch.optim.SGD):
    def __init__(
        self,
        params,
        lr=1e-3,
        momentum=0,
        dampening=0,
        weight_decay=0,
        nesterov=False,
        wd_after_momentum=False,
        materialize_master_grads=True,
        set_grad_none=False,
    ):
        calls.append(("FusedSGD", momentum))
        super().__init__(params, lr, momentum, dampening, weight_decay, nesterov)
