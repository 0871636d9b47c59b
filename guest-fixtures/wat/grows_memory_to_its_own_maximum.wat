;; Is refused a growth by the maximum that it declares itself, and gives up.
;; The host reports that it trapped: no limit of the host was in the way.
(module
  (memory (export "memory") 1 4)
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (if (i32.eq (memory.grow (i32.const 16)) (i32.const -1)) (then (unreachable)))
    (i32.const 0)))
