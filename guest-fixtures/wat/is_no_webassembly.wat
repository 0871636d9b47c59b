;; Is a sentence and no module.
;; The host rejects it, and states why.
Dear host, please finish my session.
