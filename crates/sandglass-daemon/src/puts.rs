//! How many modules are read and compiled for clients at the same time: few, since each may have
//! its largest size in memory, and of each owner's at most half, since one may take a minute.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Code, Error};

/// For all owners of keys.
const AT_ONCE: usize = 4;

/// For one owner.
const AT_ONCE_PER_OWNER: usize = 2;

/// The modules that are being put, by owner.
#[derive(Debug, Default)]
pub(crate) struct Puts(Mutex<BTreeMap<String, usize>>);

/// One of them. Dropped, it leaves room for another.
#[derive(Debug)]
pub(crate) struct Put {
    puts: Arc<Puts>,
    owner: String,
}

impl Puts {
    /// Room for one more of this owner.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn begin(self: &Arc<Self>, owner: &str) -> Result<Put, Error> {
        let mut puts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let busy = |most: usize, whose: &str| {
            let message = format!(
                "{most} modules {whose} are being put already, and no more may; try again later"
            );
            Error::new(Code::Busy, message)
        };
        if puts.get(owner).is_some_and(|own| *own >= AT_ONCE_PER_OWNER) {
            return Err(busy(AT_ONCE_PER_OWNER, &format!("of `{owner}`")));
        }
        if puts.values().sum::<usize>() >= AT_ONCE {
            return Err(busy(AT_ONCE, "of all clients"));
        }
        *puts.entry(owner.to_owned()).or_default() += 1;
        Ok(Put { puts: Arc::clone(self), owner: owner.to_owned() })
    }
}

impl Drop for Put {
    fn drop(&mut self) {
        let mut puts = self.puts.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = puts.get_mut(&self.owner) {
            *own -= 1;
            if *own == 0 {
                puts.remove(&self.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_owner_leaves_room_for_another_and_all_together_are_bounded() {
        let puts = Arc::new(Puts::default());
        let anns = [puts.begin("ann"), puts.begin("ann")].map(|put| put.expect("there is room"));
        assert!(puts.begin("ann").is_err());
        let bobs = [puts.begin("bob"), puts.begin("bob")].map(|put| put.expect("there is room"));
        assert!(puts.begin("cid").is_err());
        drop(anns);
        drop(puts.begin("cid").expect("there is room"));
        drop(bobs);
        assert!(puts.0.lock().expect("no panic").is_empty());
    }
}
