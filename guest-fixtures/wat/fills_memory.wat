;; Fills 16 MiB with one instruction, over and over.
;; The host ends it between two of them.
(module
  (memory (export "memory") 256)
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (loop $again
      (memory.fill (i32.const 0) (i32.const 0x5a) (i32.const 0x1000000))
      (br $again))
    (unreachable)))
