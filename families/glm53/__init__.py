"""GLM-5.3-Flash: linear attention, sparse attention and experts."""
