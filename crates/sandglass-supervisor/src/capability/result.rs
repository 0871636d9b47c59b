//! The result that a guest sets: once, within bounds, and copied only after its size is checked.

use sandglass_model::{Failure, FailureKind};

use crate::argument::Unreadable;
use crate::covered;
use crate::host_memory::{Charge, HostMemory, OutOfHostMemory};

/// The bytes that a guest has set as its result, or why they are invalid.
#[derive(Debug)]
pub struct ResultSlot {
    max_bytes: u64,
    memory: HostMemory,
    held: ResultState,
}

// The result is charged.
covered!(ResultSlot: max_bytes, memory, held);

#[derive(Debug)]
enum ResultState {
    Nothing,
    Bytes { bytes: Vec<u8>, _charge: Charge },
    Violation(Failure),
}

impl ResultSlot {
    pub(crate) fn new(max_bytes: u64, memory: HostMemory) -> Self {
        Self { max_bytes, memory, held: ResultState::Nothing }
    }

    /// Sets the result. A second result is a violation, and only the first violation is kept.
    ///
    /// # Errors
    /// The host memory of the run is exhausted.
    pub fn set(&mut self, bytes: Result<&[u8], Unreadable>) -> Result<(), OutOfHostMemory> {
        self.held = match (&self.held, bytes) {
            (ResultState::Violation(_), _) => return Ok(()),
            (ResultState::Bytes { .. }, _) => ResultState::Violation(violation(
                FailureKind::MultipleWrites,
                "the guest set its result more than once; set it once, at the end".to_owned(),
            )),
            (ResultState::Nothing, Err(unreadable)) => ResultState::Violation(violation(
                FailureKind::ResultOutOfBounds,
                unreadable.to_string(),
            )),
            (ResultState::Nothing, Ok(bytes)) => match self.within(bytes) {
                Ok(bytes) => {
                    let charge = self.memory.charge(bytes.len() as u64)?;
                    ResultState::Bytes { bytes: bytes.to_vec(), _charge: charge }
                }
                Err(failure) => ResultState::Violation(failure),
            },
        };
        Ok(())
    }

    fn within<'a>(&self, bytes: &'a [u8]) -> Result<&'a [u8], Failure> {
        if bytes.len() as u64 > self.max_bytes {
            return Err(violation(
                FailureKind::ResultTooLarge,
                format!("the result has {} bytes, and {} are allowed", bytes.len(), self.max_bytes),
            ));
        }
        Ok(bytes)
    }

    /// Whether the guest set a result, valid or not.
    pub fn is_set(&self) -> bool {
        !matches!(self.held, ResultState::Nothing)
    }

    /// Takes the bytes that were set; `None` if there are none.
    pub fn take(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        match std::mem::replace(&mut self.held, ResultState::Nothing) {
            ResultState::Nothing => Ok(None),
            ResultState::Bytes { bytes, .. } => Ok(Some(bytes)),
            ResultState::Violation(failure) => Err(failure),
        }
    }
}

/// Creates the failure of a guest that violates the contract.
pub fn violation(kind: FailureKind, message: String) -> Failure {
    Failure { kind, message, result: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(slot: &mut ResultSlot) -> FailureKind {
        slot.take().expect_err("a violation").kind
    }

    #[test]
    fn a_second_result_is_a_violation() {
        let mut slot = ResultSlot::new(4, HostMemory::new(1000));
        assert!(!slot.is_set());
        slot.set(Ok(b"1234")).expect("room");
        assert_eq!(slot.take().expect("it fits"), Some(b"1234".to_vec()));
        slot.set(Ok(b"1")).expect("room");
        slot.set(Ok(b"2")).expect("room");
        slot.set(Ok(b"3")).expect("room");
        assert_eq!(kind(&mut slot), FailureKind::MultipleWrites);
    }

    #[test]
    fn the_first_violation_is_kept() {
        let mut slot = ResultSlot::new(4, HostMemory::new(1000));
        slot.set(Ok(b"12345")).expect("room");
        slot.set(Ok(b"1")).expect("room");
        assert_eq!(kind(&mut slot), FailureKind::ResultTooLarge);
    }
}
