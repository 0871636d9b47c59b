;; Asks for megabytes of randomness at once, over and over.
;; The host must stop it in the middle of one.
(module
  (import "wasi_snapshot_preview1" "random_get" (func $random_get (param i32 i32) (result i32)))
  (memory (export "memory") 512)
  (func (export "run") (param i32 i32) (result i32)
    (loop $again
      (drop (call $random_get (i32.const 65536) (i32.const 33000000)))
      (br $again))
    (i32.const 0)))
