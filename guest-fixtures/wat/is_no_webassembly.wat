;; Is a sentence and no module.
;; The host refuses it, and says why.
Dear host, please finish my session.
