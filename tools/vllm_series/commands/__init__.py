# SPDX-License-Identifier: Apache-2.0
"""One module per verb; each prints and returns an exit code."""
