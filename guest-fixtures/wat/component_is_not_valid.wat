;; Is a component that instantiates a module which it has not.
;; The host refuses it, and says where it is wrong.
(component
  (core module $module (import "a" "b" (func)))
  (core instance (instantiate $module)))
