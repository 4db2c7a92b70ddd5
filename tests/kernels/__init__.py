# SPDX-License-Identifier: Apache-2.0
"""Triton kernels of the vLLM patches, run and compiled on a machine without a GPU."""
