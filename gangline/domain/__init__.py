"""PURE: the domain, as plain frozen records that every floor shares. The records mirror the messages of
protos/gangline/v1 field by field; gangline.protocol.wire maps between the two."""
