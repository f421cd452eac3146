from __future__ import annotations

from threads import one_thread as one_thread
