# SPDX-License-Identifier: Apache-2.0
"""Tests of measuring a server."""
