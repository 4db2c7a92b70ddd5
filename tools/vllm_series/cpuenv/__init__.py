# SPDX-License-Identifier: Apache-2.0
"""Files of the Python environment in which vLLM's tests run without a GPU.

``requirements.txt`` and ``constraints.txt`` make it, ``python-path`` is put into the ``PYTHONPATH`` of what
runs there, ``models`` holds the configurations of models that vLLM names by default (``ModelConfig()``): a
relative folder of that name in the current directory keeps it from asking the Hugging Face hub.

Nothing in ``python-path`` is imported by vllm-series.
"""
