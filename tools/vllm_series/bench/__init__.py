# SPDX-License-Identifier: Apache-2.0
"""Measure a running OpenAI-compatible server, by the methods that people with such boxes publish."""
