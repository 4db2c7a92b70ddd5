# SPDX-License-Identifier: Apache-2.0
"""The environment of a GPU machine without a package index, which ``vllm-series env pack`` carries there."""
