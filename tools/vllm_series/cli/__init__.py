# SPDX-License-Identifier: Apache-2.0
"""The command line: one module of arguments per group of verbs; what a verb does stands in ``commands``."""
