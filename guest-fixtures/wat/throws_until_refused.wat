;; Throws and catches exceptions forever, with too little memory for the heap that they need.
;; The host must end it as a limit: the growth of that heap was denied.
(module
  (tag $thrown (param i32))
  (memory (export "memory") 1)
  (func $throw (param i32) (throw $thrown (local.get 0)))
  (func (export "run") (param i32 i32) (result i32)
    (loop $again
      (block $caught (result i32)
        (try_table (catch $thrown $caught) (call $throw (i32.const 7)))
        (i32.const 0))
      (drop)
      (br $again))
    (i32.const 0)))
