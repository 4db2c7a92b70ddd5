# SPDX-License-Identifier: Apache-2.0
"""Start-up of the tiny Qwen4Exp model, one pipeline rank after the other, on a CPU."""
