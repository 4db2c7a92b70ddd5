# SPDX-License-Identifier: Apache-2.0
"""A real vLLM engine on real GPUs, with a tiny random Qwen4Exp model."""
