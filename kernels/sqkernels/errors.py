# SPDX-License-Identifier: Apache-2.0
"""Errors of sqkernels. A refusal before a launch raises one of these; it names the thing, the value and the fix.

SqkernelsError
├── KernelInputError      a tensor, a span or a number that a kernel cannot be given
├── KernelInstallError    torch or triton is missing; an ImportError too
├── KernelDeviceError     tensors that lie where no kernel can reach them
└── KernelCompileError    a kernel that does not compile for the target, or not into what it promises
"""

from __future__ import annotations


class SqkernelsError(Exception):
    """Base of every error that sqkernels raises on purpose."""


class KernelInputError(SqkernelsError, ValueError):
    """A kernel cannot use an argument as given."""


class KernelInstallError(SqkernelsError, ImportError):
    """A package that the kernels need is not installed; the message names the command that installs it."""


class KernelDeviceError(SqkernelsError):
    """The tensors are not all on one device that can run a kernel."""


class KernelCompileError(SqkernelsError):
    """A kernel does not compile for the target, or its machine code breaks a promise."""
