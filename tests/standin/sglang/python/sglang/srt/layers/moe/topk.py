"""How many experts a decode step loads, which is what it costs."""
import logging

logger = logging.getLogger(__name__)
TOP_K = 8


def experts_loaded(batch):
    return batch * TOP_K


def capture(batch):
    """Called once for each batch size before the server is ready."""
    logger.info("Capture batch bs=%d: %d experts", batch, experts_loaded(batch))
