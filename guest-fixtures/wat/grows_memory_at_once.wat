;; Asks for 4 GiB in one step, is refused, and gives up.
;; The host reports that it hit the memory limit.
(module
  (memory (export "memory") 1)
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (if (i32.eq (memory.grow (i32.const 65535)) (i32.const -1)) (then (unreachable)))
    (i32.const 0)))
