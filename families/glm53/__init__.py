"""GLM-5.3-Flash (glm5_next): KDA, pooled sparse attention, hyper-connections, MTP."""
