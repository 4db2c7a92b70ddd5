# SPDX-License-Identifier: Apache-2.0
"""How much of what a model needs lands on which card: arithmetic alone, without torch and without a GPU."""
