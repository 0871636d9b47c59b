//! Deployments: what hosts propose, and which one is active.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sandglass_journal::Error;
use sandglass_model::{DeploymentStatus, WallTime};
use sandglass_postgres::{
    Activation, Address, Database, Deployments, FILES_MAX_BYTES, FormatUpgrade, GENERATIONS_KEPT,
    Proposal, RECORDS_FORMAT, Settings,
};
use sha2::{Digest as _, Sha256};

use crate::membership;
use crate::server::{self, block};

fn connect(address: &Address) -> Deployments {
    let address = address.clone();
    let settings = Settings::default().limits(Duration::from_secs(10), Duration::from_secs(2));
    block(async move { Deployments::connect(&address, settings).await }).unwrap()
}

/// A deployment of these files, whose manifest begins with `name`.
fn proposal(name: &str, files: &[&[u8]]) -> Proposal {
    let hash = |bytes: &[u8]| -> [u8; 32] { Sha256::digest(bytes).into() };
    let contents: BTreeMap<_, Arc<[u8]>> =
        files.iter().map(|bytes| (hash(bytes), Arc::from(*bytes))).collect();
    Proposal {
        manifest: format!("{name} {contents:?}").chars().take(500).collect(),
        files: contents.keys().copied().collect(),
        contents,
        proposed_by: "a machine 7".to_owned(),
        at: WallTime::from_millis(1_000),
    }
}

fn propose(deployments: &Deployments, proposal: Proposal) -> Result<u64, Error> {
    let deployments = deployments.clone();
    block(async move { deployments.propose(&proposal).await })
}

fn activate(deployments: &Deployments, generation: u64, expected: Option<u64>) -> Activation {
    let (deployments, at) = (deployments.clone(), WallTime::from_millis(2_000));
    block(async move { deployments.activate(generation, expected, at).await }).unwrap()
}

fn generations(deployments: &Deployments) -> Vec<u64> {
    let deployments = deployments.clone();
    let listed = block(async move { deployments.list().await }).unwrap();
    listed.iter().map(|one| one.generation).collect()
}

#[test]
fn a_deployment_is_stored_once_and_fetched_as_it_is() {
    let address = server::shared().new_database("deployed");
    let deployments = connect(&address);
    let large = vec![7_u8; (2 << 20) + 3];
    let whole = vec![8_u8; 1 << 20];
    let first = proposal("first", &[b"a spec", &large, &whole, b""]);
    assert_eq!(propose(&deployments, first.clone()), Ok(1));
    assert_eq!(propose(&deployments, first.clone()), Ok(1), "it is there");
    let (reading, listing) = (deployments.clone(), deployments.clone());
    let fetched = block(async move { reading.fetch(1).await }).unwrap().unwrap();
    assert_eq!(fetched.manifest, first.manifest);
    let expected = first.contents.iter().map(|(hash, bytes)| (*hash, bytes.to_vec()));
    assert_eq!(fetched.files, expected.collect());
    let listed = block(async move { listing.list().await }).unwrap();
    assert_eq!((listed[0].generation, listed[0].proposed_by.as_str()), (1, "a machine 7"));
    assert_eq!((listed[0].at.as_millis(), listed[0].activated), (1_000, None));
    let reading = deployments.clone();
    assert_eq!(block(async move { reading.fetch(2).await }), Ok(None));
    let second = Proposal { contents: BTreeMap::new(), ..proposal("second", &[b"a spec"]) };
    assert_eq!(propose(&deployments, second), Ok(2), "the file is there already");
    let third = Proposal { contents: BTreeMap::new(), ..proposal("third", &[b"another"]) };
    let error = propose(&deployments, third).unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert_eq!(generations(&deployments), [1, 2], "it is not complete");
    assert_eq!(propose(&deployments, proposal("third", &[b"another"])), Ok(3), "it is completed");
}

#[test]
fn a_deployment_that_is_too_large_is_refused() {
    let address = server::shared().new_database("deployed_large");
    let large = vec![0; FILES_MAX_BYTES + 1];
    let error = propose(&connect(&address), proposal("large", &[&large])).unwrap_err();
    assert!(error.to_string().contains("the files of a deployment takes"), "{error}");
}

#[test]
fn one_of_two_operators_learns_that_another_generation_is_active() {
    let address = server::shared().new_database("activated");
    let deployments = connect(&address);
    for name in ["one", "two", "three"] {
        propose(&deployments, proposal(name, &[name.as_bytes()])).unwrap();
    }
    assert!(matches!(activate(&deployments, 1, None), Activation::Done { .. }));
    assert!(matches!(activate(&deployments, 2, Some(1)), Activation::Done { .. }));
    let conflict = Activation::Conflict { active: Some(2) };
    assert_eq!(activate(&deployments, 3, Some(1)), conflict);
    assert_eq!(activate(&deployments, 3, None), conflict);
    assert_eq!(activate(&deployments, 9, Some(2)), Activation::Unknown);
    assert!(matches!(activate(&deployments, 1, Some(2)), Activation::Done { .. }), "back");
    let member = membership::join(&address);
    let seen = membership::membership(&member);
    assert_eq!((seen.agreed.generation, seen.agreed.writes_format), (Some(1), 1));
    let before = seen.agreed.changes;
    propose(&deployments, proposal("four", &[b"four"])).unwrap();
    assert!(membership::membership(&member).agreed.changes > before);
    membership::beat(&member).unwrap();
    assert!(membership::claim_any(&member).is_empty(), "it does not run generation 1");
    member.set_deployed(DeploymentStatus { generation: Some(1), trouble: None });
    membership::beat(&member).unwrap();
    assert_eq!(membership::claim_any(&member).len(), 64);
    member.set_deployed(DeploymentStatus::default());
    membership::beat(&member).unwrap();
    assert_eq!(membership::claim_any(&member).len(), 64, "it owns them");
    let trouble = Some("x".repeat(5_000));
    member.set_deployed(DeploymentStatus { generation: Some(1), trouble });
    let seen = membership::beat(&member).unwrap();
    let deployed = seen.host(member.host()).unwrap().deployed.clone();
    assert_eq!((deployed.generation, deployed.trouble.unwrap().len()), (Some(1), 1_000));
}

#[test]
fn proposals_at_the_same_time_are_one_deployment_if_they_are_equal() {
    let address = server::shared().new_database("raced");
    let all: Vec<_> = (0..8_u8)
        .map(|number| {
            let address = address.clone();
            let name = if number % 2 == 0 { "even" } else { "odd" };
            server::spawn(async move {
                let deployments =
                    Deployments::connect(&address, Settings::default()).await.unwrap();
                let file = vec![number % 2; 3 << 20];
                let proposed = proposal(name, &[&file]);
                let generation = deployments.propose(&proposed).await.unwrap();
                let done = deployments.activate(generation, None, WallTime::from_millis(1)).await;
                (name, generation, done.unwrap())
            })
        })
        .collect();
    let done = block(async move {
        let mut done = Vec::new();
        for one in all {
            done.push(one.await.unwrap());
        }
        done
    });
    let of = |wanted: &str| {
        let of: std::collections::BTreeSet<u64> = done
            .iter()
            .filter(|(name, ..)| *name == wanted)
            .map(|(_, number, _)| *number)
            .collect();
        assert_eq!(of.len(), 1, "{done:?}");
        of
    };
    assert_ne!(of("even"), of("odd"));
    let activated =
        done.iter().filter(|(.., done)| matches!(done, Activation::Done { .. })).count();
    assert_eq!(activated, 1, "{done:?}");
}

#[test]
fn changes_at_the_same_time_do_not_wait_for_each_other() {
    let address = server::shared().new_database("deadlocks");
    let begun = propose(&connect(&address), proposal("first", &[b"first"])).unwrap();
    let all: Vec<_> = (0..6_usize)
        .map(|number| {
            let address = address.clone();
            server::spawn(async move {
                let deployments =
                    Deployments::connect(&address, Settings::default()).await.unwrap();
                for round in 0..20 {
                    if number % 3 == 0 {
                        // Removes old ones, once there are too many.
                        let name = format!("{number} {round}");
                        deployments.propose(&proposal(&name, &[name.as_bytes()])).await.unwrap();
                    } else {
                        let active = deployments.agreed().await.unwrap().generation;
                        let wanted = deployments.list().await.unwrap();
                        let wanted = wanted[round % 2 * (wanted.len() - 1)].generation;
                        let at = WallTime::from_millis(1);
                        deployments.activate(wanted, active, at).await.unwrap();
                    }
                }
            })
        })
        .collect();
    block(async move {
        for one in all {
            one.await.unwrap();
        }
    });
    assert!(generations(&connect(&address)).iter().any(|it| *it > begun));
}

#[test]
fn generations_that_were_not_used_for_long_are_removed_with_their_files() {
    let address = server::shared().new_database("many_deployed");
    let deployments = connect(&address);
    for number in 0..GENERATIONS_KEPT + 3 {
        let own = format!("file {number}");
        let generation =
            propose(&deployments, proposal(&own, &[own.as_bytes(), b"shared"])).unwrap();
        match generation {
            1 => assert!(matches!(activate(&deployments, 1, None), Activation::Done { .. })),
            2 => assert!(matches!(activate(&deployments, 2, Some(1)), Activation::Done { .. })),
            _ => {}
        }
    }
    let kept = generations(&deployments);
    assert_eq!(kept.len(), GENERATIONS_KEPT);
    assert!(kept.contains(&2) && !kept.contains(&1), "{kept:?}");
    let files = "SELECT count(DISTINCT hash) FROM sandglass.deployment_files";
    let files = server::shared().psql("many_deployed", files);
    assert_eq!(files, (GENERATIONS_KEPT + 1).to_string());
    assert_eq!(activate(&deployments, 1, Some(2)), Activation::Unknown);
}

#[test]
fn a_file_that_was_damaged_is_not_used() {
    let address = server::shared().new_database("deployed_damaged");
    let deployments = connect(&address);
    propose(&deployments, proposal("one", &[b"a spec"])).unwrap();
    let fetch = || {
        let deployments = deployments.clone();
        block(async move { deployments.fetch(1).await }).unwrap_err().to_string()
    };
    server::shared().psql("deployed_damaged", "UPDATE sandglass.deployment_files SET bytes = 'b'");
    assert!(fetch().contains("another content than its hash"), "{}", fetch());
    server::shared().psql("deployed_damaged", "DELETE FROM sandglass.deployment_files");
    assert!(fetch().contains("is missing"), "{}", fetch());
}

#[test]
fn a_format_that_a_host_cannot_read_is_not_written() {
    let address = server::shared().new_database("formats");
    let (deployments, member) = (connect(&address), membership::join(&address));
    let upgrade = || {
        let deployments = deployments.clone();
        block(async move { deployments.upgrade_format().await }).unwrap()
    };
    assert_eq!(upgrade(), FormatUpgrade::Already(RECORDS_FORMAT));
    let psql = |sql: &str| server::shared().psql("formats", sql);
    psql("UPDATE sandglass.agreed SET writes_format = 0");
    psql(&format!(
        "INSERT INTO sandglass.hosts (host, name, version, beats, dead, url, reads_format) \
         VALUES ('{}', 'old 1', '0.0.1', 1, false, 'http://old.example', 0)",
        "a".repeat(32)
    ));
    let hosts = vec![("old 1 at http://old.example".to_owned(), 0)];
    assert_eq!(upgrade(), FormatUpgrade::Refused { format: RECORDS_FORMAT, hosts });
    psql("UPDATE sandglass.hosts SET dead = true WHERE name = 'old 1'");
    assert_eq!(upgrade(), FormatUpgrade::Done(RECORDS_FORMAT));
    assert_eq!(membership::membership(&member).agreed.writes_format, RECORDS_FORMAT);
    psql("UPDATE sandglass.agreed SET writes_format = 9");
    let joining = address.clone();
    let error = block(async move {
        Database::join(&joining, Settings::default(), "http://late.example").await
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("written in format 9, and this version reads up to 1"), "{error}");
    psql("UPDATE sandglass.agreed SET writes_format = 1");
}
