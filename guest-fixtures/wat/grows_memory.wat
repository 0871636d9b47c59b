;; Grows its memory by 1 MiB at a time until that is refused, and gives up.
;; The host reports that it hit the memory limit, not just that it trapped.
(module
  (memory (export "memory") 1)
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (loop $again
      (br_if $again (i32.ne (memory.grow (i32.const 16)) (i32.const -1))))
    (unreachable)))
