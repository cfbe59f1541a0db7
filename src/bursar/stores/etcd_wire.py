"""The few messages of etcd's API (version 3) that the store sends and reads, for gRPC.

Names and numbers of their fields are the protocol's. The classes are made from this table when the module
is loaded: what a compiler of .proto files would write is longer, and bound to a version of protobuf.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "etcdserverpb"

_MESSAGES = {
    "KeyValue": "key=1:bytes create_revision=2:int64 mod_revision=3:int64 version=4:int64 value=5:bytes "
    "lease=6:int64",
    "Event": "type=1:int32 kv=2:KeyValue",
    "ResponseHeader": "cluster_id=1:uint64 member_id=2:uint64 revision=3:int64 raft_term=4:uint64",
    "RangeRequest": "key=1:bytes range_end=2:bytes limit=3:int64 revision=4:int64 serializable=7:bool "
    "keys_only=8:bool count_only=9:bool",
    "RangeResponse": "header=1:ResponseHeader kvs=2:*KeyValue more=3:bool count=4:int64",
    "PutRequest": "key=1:bytes value=2:bytes lease=3:int64 prev_kv=4:bool",
    "PutResponse": "header=1:ResponseHeader prev_kv=2:KeyValue",
    "DeleteRangeRequest": "key=1:bytes range_end=2:bytes",
    "DeleteRangeResponse": "header=1:ResponseHeader deleted=2:int64",
    "RequestOp": "request_range=1:RangeRequest request_put=2:PutRequest "
    "request_delete_range=3:DeleteRangeRequest request_txn=4:TxnRequest",
    "ResponseOp": "response_range=1:RangeResponse response_put=2:PutResponse "
    "response_delete_range=3:DeleteRangeResponse response_txn=4:TxnResponse",
    "Compare": "result=1:int32 target=2:int32 key=3:bytes version=4:int64 create_revision=5:int64 "
    "mod_revision=6:int64 value=7:bytes lease=8:int64 range_end=64:bytes",
    "TxnRequest": "compare=1:*Compare success=2:*RequestOp failure=3:*RequestOp",
    "TxnResponse": "header=1:ResponseHeader succeeded=2:bool responses=3:*ResponseOp",
    "WatchCreateRequest": "key=1:bytes range_end=2:bytes start_revision=3:int64 watch_id=7:int64",
    "WatchCancelRequest": "watch_id=1:int64",
    "WatchRequest": "create_request=1:WatchCreateRequest cancel_request=2:WatchCancelRequest",
    "WatchResponse": "header=1:ResponseHeader watch_id=2:int64 created=3:bool canceled=4:bool "
    "compact_revision=5:int64 cancel_reason=6:string events=11:*Event",
    "LeaseGrantRequest": "TTL=1:int64 ID=2:int64",
    "LeaseGrantResponse": "header=1:ResponseHeader ID=2:int64 TTL=3:int64 error=4:string",
    "LeaseRevokeRequest": "ID=1:int64",
    "LeaseRevokeResponse": "header=1:ResponseHeader",
    "LeaseKeepAliveRequest": "ID=1:int64",
    "LeaseKeepAliveResponse": "header=1:ResponseHeader ID=2:int64 TTL=3:int64",
    "AuthenticateRequest": "name=1:string password=2:string",
    "AuthenticateResponse": "header=1:ResponseHeader token=2:string",
    "StatusRequest": "",
    "StatusResponse": "header=1:ResponseHeader version=2:string dbSize=3:int64 leader=4:uint64 "
    "raftIndex=5:uint64 raftTerm=6:uint64 errors=8:*string",
}

EQUAL, GREATER, LESS = 0, 1, 2
VERSION, CREATE, MOD, VALUE = 0, 1, 2, 3
PUT, DELETE = 0, 1


def _describe(name: str, fields: str) -> Any:
    message = descriptor_pb2.DescriptorProto(name=name)
    for field in fields.split():
        label, _, kind = field.partition(":")
        title, _, number = label.partition("=")
        made = message.field.add(name=title, number=int(number))
        made.label = made.LABEL_REPEATED if kind.startswith("*") else made.LABEL_OPTIONAL
        kind = kind.removeprefix("*")
        if kind in _MESSAGES:
            made.type, made.type_name = made.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
        else:
            made.type = getattr(made, f"TYPE_{kind.upper()}")
    return message


def _build() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="bursar/etcd.proto", package=PACKAGE, syntax="proto3")
    file.message_type.extend(_describe(name, fields) for name, fields in _MESSAGES.items())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    find = pool.FindMessageTypeByName
    return {name: message_factory.GetMessageClass(find(f"{PACKAGE}.{name}")) for name in _MESSAGES}


_classes = _build()

KeyValue = _classes["KeyValue"]
Compare = _classes["Compare"]
RequestOp = _classes["RequestOp"]
RangeRequest = _classes["RangeRequest"]
PutRequest = _classes["PutRequest"]
DeleteRangeRequest = _classes["DeleteRangeRequest"]
TxnRequest = _classes["TxnRequest"]
WatchRequest = _classes["WatchRequest"]
WatchCreateRequest = _classes["WatchCreateRequest"]
WatchCancelRequest = _classes["WatchCancelRequest"]
LeaseGrantRequest = _classes["LeaseGrantRequest"]
LeaseRevokeRequest = _classes["LeaseRevokeRequest"]
LeaseKeepAliveRequest = _classes["LeaseKeepAliveRequest"]
AuthenticateRequest = _classes["AuthenticateRequest"]
StatusRequest = _classes["StatusRequest"]

UNARY = {
    "KV/Range": "RangeResponse",
    "KV/Txn": "TxnResponse",
    "Lease/LeaseGrant": "LeaseGrantResponse",
    "Lease/LeaseRevoke": "LeaseRevokeResponse",
    "Auth/Authenticate": "AuthenticateResponse",
    "Maintenance/Status": "StatusResponse",
}
STREAMS = {"Watch/Watch": "WatchResponse", "Lease/LeaseKeepAlive": "LeaseKeepAliveResponse"}


def methods(channel: Any) -> dict[str, Any]:
    """What can be called on a channel, by name."""
    made = {}
    for table, kind in ((UNARY, channel.unary_unary), (STREAMS, channel.stream_stream)):
        for name, answer in table.items():
            made[name] = kind(
                f"/{PACKAGE}.{name}",
                request_serializer=_serialize,
                response_deserializer=_classes[answer].FromString,
            )
    return made


def _serialize(message: Any) -> bytes:
    encoded: bytes = message.SerializeToString()
    return encoded
