;; Answers its inputs, or a variable, by pairs of two results each.
;; The host gives back the same values.
(module
  (import "openwop" "openwop_variable_get"
    (func $variable_get (param i32 i32) (result i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "vendor.sandglass.wat-echo")
  (data (i32.const 41) "vendor.sandglass.wat-echo.echo")
  (data (i32.const 71) "vendor.sandglass.wat-echo.variable")
  (data (i32.const 1024) "{\"outcome\":\"completed\",\"output\":")
  (data (i32.const 1088) "\"inputs\"")
  (data (i32.const 1104) "name")
  (data (i32.const 1112) "{\"outcome\":\"completed\",\"output\":null}")
  (global $next (mut i32) (i32.const 4096))

  (func (export "openwop_abi_version") (result i32) (i32.const 1))
  (func (export "openwop_pack_name") (result i32 i32)
    (i32.const 16) (i32.const 25))
  (func (export "openwop_node_count") (result i32) (i32.const 2))
  (func (export "openwop_node_id_at") (param $index i32) (result i32 i32)
    (if (i32.eq (local.get $index) (i32.const 0)) (then (return (i32.const 41) (i32.const 30))))
    (i32.const 71) (i32.const 34))

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

  ;; The nodes: 0 answers its inputs, 1 the variable `name`, null where there is none.
  (func (export "openwop_node_invoke")
    (param $index i32) (param $request i32) (param $request_len i32) (result i32 i32)
    (local $pointer i32) (local $len i32)
    (if (i32.eqz (local.get $index))
      (then (return (call $complete
        (call $inputs (local.get $request) (i32.add (local.get $request) (local.get $request_len)))))))
    (call $variable_get (i32.const 1104) (i32.const 4))
    (local.set $len)
    (local.set $pointer)
    (if (i32.eqz (local.get $pointer)) (then (return (i32.const 1112) (i32.const 37))))
    (call $complete (local.get $pointer) (local.get $len)))

  ;; The response that completes with this JSON.
  (func $complete (param $output i32) (param $output_len i32) (result i32 i32)
    (local $response i32) (local $response_len i32)
    (local.set $response_len (i32.add (local.get $output_len) (i32.const 33)))
    (local.set $response (call $alloc (local.get $response_len)))
    (memory.copy (local.get $response) (i32.const 1024) (i32.const 32))
    (memory.copy
      (i32.add (local.get $response) (i32.const 32)) (local.get $output) (local.get $output_len))
    (i32.store8
      (i32.sub (i32.add (local.get $response) (local.get $response_len)) (i32.const 1))
      (i32.const 0x7d)) ;; }
    (local.get $response) (local.get $response_len))

  ;; The value of the request's key `inputs`, as it stands there: what is between the colon
  ;; behind that key and the comma or brace that ends it, outside of strings and of what is
  ;; nested. Traps where there is none.
  (func $inputs (param $at i32) (param $end i32) (result i32 i32)
    (local $byte i32) (local $depth i32) (local $value i32) (local $string i32)
    (loop $next_byte
      (if (i32.ge_u (local.get $at) (local.get $end)) (then (unreachable)))
      (local.set $byte (i32.load8_u (local.get $at)))
      (if (i32.eq (local.get $byte) (i32.const 0x22)) ;; "
        (then
          (local.set $string (local.get $at))
          (local.set $at (call $end_of_string (local.get $at) (local.get $end)))
          (if (i32.and
                (i32.eq (local.get $depth) (i32.const 1))
                (call $is_key (local.get $string) (local.get $at)))
            (then
              (local.set $at (call $colon (local.get $at) (local.get $end)))
              (local.set $value (i32.add (local.get $at) (i32.const 1)))))
          (local.set $at (i32.add (local.get $at) (i32.const 1)))
          (br $next_byte)))
      (if (i32.and
            (i32.ne (local.get $value) (i32.const 0))
            (i32.and
              (i32.eq (local.get $depth) (i32.const 1))
              (i32.or
                (i32.eq (local.get $byte) (i32.const 0x2c)) ;; ,
                (i32.eq (local.get $byte) (i32.const 0x7d))))) ;; }
        (then (return (local.get $value) (i32.sub (local.get $at) (local.get $value)))))
      (if (i32.or
            (i32.eq (local.get $byte) (i32.const 0x7b)) ;; {
            (i32.eq (local.get $byte) (i32.const 0x5b))) ;; [
        (then (local.set $depth (i32.add (local.get $depth) (i32.const 1)))))
      (if (i32.or
            (i32.eq (local.get $byte) (i32.const 0x7d)) ;; }
            (i32.eq (local.get $byte) (i32.const 0x5d))) ;; ]
        (then (local.set $depth (i32.sub (local.get $depth) (i32.const 1)))))
      (local.set $at (i32.add (local.get $at) (i32.const 1)))
      (br $next_byte))
    (unreachable))

  ;; Where the string that begins at $at has its closing quote.
  (func $end_of_string (param $at i32) (param $end i32) (result i32)
    (local $byte i32)
    (loop $next_byte
      (local.set $at (i32.add (local.get $at) (i32.const 1)))
      (if (i32.ge_u (local.get $at) (local.get $end)) (then (unreachable)))
      (local.set $byte (i32.load8_u (local.get $at)))
      (if (i32.eq (local.get $byte) (i32.const 0x5c)) ;; \
        (then
          (local.set $at (i32.add (local.get $at) (i32.const 1)))
          (br $next_byte)))
      (br_if $next_byte (i32.ne (local.get $byte) (i32.const 0x22))))
    (local.get $at))

  ;; Whether the string between these quotes is `inputs`. (No value of the request at this
  ;; depth is a string.)
  (func $is_key (param $at i32) (param $last i32) (result i32)
    (i32.and
      (i32.eq (i32.sub (local.get $last) (local.get $at)) (i32.const 7))
      (i64.eq (i64.load (local.get $at)) (i64.load (i32.const 1088)))))

  ;; Where the colon behind $at is.
  (func $colon (param $at i32) (param $end i32) (result i32)
    (loop $next_byte
      (local.set $at (i32.add (local.get $at) (i32.const 1)))
      (if (i32.ge_u (local.get $at) (local.get $end)) (then (unreachable)))
      (br_if $next_byte (i32.ne (i32.load8_u (local.get $at)) (i32.const 0x3a))))
    (local.get $at)))
