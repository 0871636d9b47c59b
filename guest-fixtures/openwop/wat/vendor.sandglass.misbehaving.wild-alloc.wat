;; Answers -1 when the host asks for room for the request.
;; The node fails, and the host writes nothing anywhere.
(module
  (memory (export "memory") 1)
  (data (i32.const 16) "vendor.sandglass.misbehaving.wild-alloc")
  (data (i32.const 1024) "{\"outcome\":\"completed\",\"output\":{\"ran\":true}}")

  (func (export "openwop_abi_version") (result i32) (i32.const 1))
  (func (export "openwop_pack_name") (result i32 i32)
    (i32.const 16) (i32.const 39))
  (func (export "openwop_node_count") (result i32) (i32.const 1))
  (func (export "openwop_node_id_at") (param $index i32) (result i32 i32)
    (i32.const 16) (i32.const 39))
  (func (export "openwop_alloc") (param $size i32) (result i32) (i32.const -1))
  (func (export "openwop_free") (param $pointer i32) (param $size i32))

  (func (export "openwop_node_invoke")
    (param $index i32) (param $request i32) (param $request_len i32) (result i32 i32)
    (i32.const 1024) (i32.const 45)))
