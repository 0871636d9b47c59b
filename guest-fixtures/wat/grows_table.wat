;; Grows a table until that is refused, and gives up.
;; The host reports that it hit the table limit.
(module
  (memory (export "memory") 1)
  (table $table 1 funcref)
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (loop $again
      (br_if $again (i32.ne (table.grow $table (ref.null func) (i32.const 1000)) (i32.const -1))))
    (unreachable)))
