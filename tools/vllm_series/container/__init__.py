# SPDX-License-Identifier: Apache-2.0
"""The series over the vLLM in a container image: the folder with files, start scripts and checks.

Nothing here runs a container engine. ``verify.py`` is copied into the folder and runs in the container.
"""
