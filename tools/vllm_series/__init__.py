# SPDX-License-Identifier: Apache-2.0
"""Carry a series of patches to vLLM until upstream has taken every one of them."""

__version__ = "0.1.0"
