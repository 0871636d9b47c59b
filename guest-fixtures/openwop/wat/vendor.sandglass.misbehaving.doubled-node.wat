;; Says that it has the same node twice: which of the two runs, nobody could tell.
;; The host refuses the pack, and names the node.
(module
  (memory (export "memory") 1)
  (data (i32.const 16) "vendor.sandglass.misbehaving.doubled-node")
  (data (i32.const 1024) "{\"outcome\":\"completed\",\"output\":{\"ran\":true}}")
  (global $next (mut i32) (i32.const 4096))

  (func (export "openwop_abi_version") (result i32) (i32.const 1))
  (func (export "openwop_pack_name") (result i32 i32)
    (i32.const 16) (i32.const 41))
  (func (export "openwop_node_count") (result i32) (i32.const 2))
  (func (export "openwop_node_id_at") (param $index i32) (result i32 i32)
    (i32.const 16) (i32.const 41))

  ;; A bump allocator: what is freed stays where it is.
  (func $alloc (export "openwop_alloc") (param $size i32) (result i32)
    (local $start i32)
    (local.set $start (global.get $next))
    (global.set $next (i32.add (local.get $start) (local.get $size)))
    (loop $until_it_fits
      (if (i32.gt_u (global.get $next) (i32.mul (memory.size) (i32.const 65536)))
        (then
          (br_if $until_it_fits (i32.ne (memory.grow (i32.const 1)) (i32.const -1)))
          (return (i32.const 0)))))
    (local.get $start))
  (func (export "openwop_free") (param $pointer i32) (param $size i32))

  (func (export "openwop_node_invoke")
    (param $index i32) (param $request i32) (param $request_len i32) (result i32 i32)
    (i32.const 1024) (i32.const 45)))
