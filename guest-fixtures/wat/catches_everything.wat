;; Catches whatever is thrown around its host calls, and calls on.
;; The host ends it: a kill is no exception that a guest can catch.
(module
  (import "env" "host_get_time_millis" (func $get_time_millis (result i64)))
  (memory (export "memory") 1)
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (loop $again
      (block $caught
        (try_table (catch_all $caught)
          (drop (call $get_time_millis))))
      (br $again))
    (unreachable)))
