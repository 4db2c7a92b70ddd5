# SPDX-License-Identifier: Apache-2.0
"""Run at the start of every interpreter under test, spawned children included.

The folder of this file stands in ``PYTHONPATH``. It holds what an interpreter needs to run vLLM's tests
without a GPU, and nothing of it depends on vllm-series itself: the interpreter is another one.
"""

import vllm_series_guard  # type: ignore[import-not-found]
import vllm_series_shims  # type: ignore[import-not-found]

vllm_series_guard.install()
vllm_series_shims.install()
