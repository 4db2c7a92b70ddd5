# SPDX-License-Identifier: Apache-2.0
"""What would go wrong with a start of ``vllm serve``: facts, and one small check per mistake."""
