//! Tests of the folder for compiled code, on the disk.

use super::*;
use crate::module::Kind;
use sandglass_model::{ModuleHash, Monotonic, WallTime};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicI64, Ordering};
use wasmtime::Engine;

/// A clock whose wall time tests set, in milliseconds.
#[derive(Debug, Default)]
struct SetClock(AtomicI64);

impl Clock for SetClock {
    fn now(&self) -> Monotonic {
        Monotonic::from_nanos(0)
    }

    fn wall(&self) -> WallTime {
        WallTime::from_millis(self.0.fetch_add(1000, Ordering::SeqCst))
    }
}

struct World {
    place: tempfile::TempDir,
    clock: Arc<SetClock>,
    engine: Engine,
}

impl World {
    fn new() -> Self {
        let clock = Arc::new(SetClock(AtomicI64::new(1_700_000_000_000)));
        let place = tempfile::tempdir().expect("a folder");
        Self { place, clock, engine: Engine::default() }
    }

    fn path(&self) -> std::path::PathBuf {
        self.place.path().join("below/compiled")
    }

    fn open(&self, max_bytes: u64) -> Result<CompiledFolder, Unusable> {
        CompiledFolder::open(&self.path(), max_bytes, self.clock.clone(), Metrics::disabled())
    }

    fn entry(&self, nth: u8) -> Entry {
        Entry::of(&self.engine, ModuleHash::of(&[nth]), Kind::CoreModule)
    }

    fn file(&self, nth: u8) -> std::path::PathBuf {
        self.path().join(format!("{}{CODE}", self.entry(nth).name()))
    }

    fn code(&self) -> Code {
        let module = b"(module (func (export \"run\")))";
        Code::of(Fresh::compile(&self.engine, Kind::CoreModule, module).expect("a module"))
            .expect("memory")
    }
}

const PLENTY: u64 = 1 << 30;

#[test]
fn kept_code_is_found_by_the_next_process_and_can_be_loaded() {
    let world = World::new();
    let folder = world.open(PLENTY).expect("a folder");
    assert!(folder.find(&world.entry(1)).is_none());
    folder.keep(&world.entry(1), &world.code());
    let next = world.open(PLENTY).expect("a folder");
    let genuine = next.find(&world.entry(1)).expect("it was kept");
    let module = genuine.module(&world.engine).expect("a module");
    assert!(module.get_export("run").is_some());
    assert!(genuine.component(&world.engine).is_err(), "it is a module");
    assert!(next.find(&world.entry(2)).is_none());
    for (path, mode) in [(world.path(), 0o700), (world.file(1), 0o600), (key_of(&world), 0o600)] {
        let has = fs::metadata(&path).expect("there").permissions().mode() & 0o777;
        assert_eq!(has, mode, "{}", path.display());
    }
}

fn key_of(world: &World) -> std::path::PathBuf {
    world.path().join(KEY)
}

#[test]
fn an_entry_is_for_one_module_one_kind_and_one_setting_of_the_engine() {
    let world = World::new();
    let hash = ModuleHash::of(b"module");
    let fuel = Engine::new(wasmtime::Config::new().consume_fuel(true)).expect("an engine");
    let same = Engine::default();
    let entry = Entry::of(&world.engine, hash, Kind::CoreModule);
    assert_eq!(entry, Entry::of(&same, hash, Kind::CoreModule), "the same in each process");
    assert_ne!(entry, Entry::of(&fuel, hash, Kind::CoreModule));
    assert_ne!(entry, Entry::of(&world.engine, hash, Kind::Component));
    assert_ne!(entry, Entry::of(&world.engine, ModuleHash::of(b"other"), Kind::CoreModule));
}

#[test]
fn an_entry_that_has_changed_is_removed() {
    let world = World::new();
    let folder = world.open(PLENTY).expect("a folder");
    let damages: [fn(&mut Vec<u8>); 6] = [
        |bytes| bytes.clear(),
        |bytes| bytes.truncate(20),
        |bytes| bytes.truncate(bytes.len() - 1),
        |bytes| bytes.push(0),
        |bytes| bytes[3] ^= 1,
        |bytes| *bytes.last_mut().expect("some") ^= 0x80,
    ];
    for damage in damages {
        folder.keep(&world.entry(1), &world.code());
        let mut bytes = fs::read(world.file(1)).expect("kept");
        damage(&mut bytes);
        fs::write(world.file(1), bytes).expect("written");
        assert!(folder.find(&world.entry(1)).is_none());
        assert!(!world.file(1).exists());
    }
    // Another entry's file under this one's name.
    folder.keep(&world.entry(1), &world.code());
    fs::rename(world.file(1), world.file(2)).expect("moved");
    assert!(folder.find(&world.entry(2)).is_none());
    assert!(!world.file(2).exists());
}

#[test]
fn files_that_others_may_have_written_are_not_read() {
    let world = World::new();
    let folder = world.open(PLENTY).expect("a folder");
    folder.keep(&world.entry(1), &world.code());
    fs::set_permissions(world.file(1), fs::Permissions::from_mode(0o620)).expect("ours");
    assert!(folder.find(&world.entry(1)).is_none());

    folder.keep(&world.entry(1), &world.code());
    fs::rename(world.file(1), world.path().join("elsewhere")).expect("moved");
    std::os::unix::fs::symlink(world.path().join("elsewhere"), world.file(1)).expect("linked");
    assert!(folder.find(&world.entry(1)).is_none(), "a link leads somewhere else");

    fs::create_dir(world.file(2)).expect("a folder");
    assert!(folder.find(&world.entry(2)).is_none());
}

#[test]
fn other_files_in_the_folder_stay_as_they_are() {
    let world = World::new();
    drop(world.open(PLENTY).expect("a folder"));
    for name in ["key", "id_ed25519", "code"] {
        fs::write(world.path().join(name), name).expect("written");
    }
    let folder = world.open(PLENTY).expect("a folder");
    folder.keep(&world.entry(1), &world.code());
    for name in ["key", "id_ed25519", "code"] {
        assert_eq!(fs::read(world.path().join(name)).expect("there"), name.as_bytes());
    }
}

#[test]
fn a_full_disk_is_distinguished_from_a_folder_that_is_unfit() {
    let of = |kind: io::ErrorKind| Unusable::Key(kind.into()).is_for_lack_of_room();
    assert!(of(io::ErrorKind::StorageFull) && of(io::ErrorKind::ReadOnlyFilesystem));
    assert!(!of(io::ErrorKind::PermissionDenied));
    assert!(!Unusable::Unfit(Unfit::Mode).is_for_lack_of_room());
    let world = World::new();
    fs::create_dir_all(world.place.path().join("below")).expect("made");
    fs::write(world.path(), "a file").expect("written");
    assert!(matches!(world.open(PLENTY), Err(Unusable::Unfit(Unfit::Kind))));
}

#[test]
fn a_folder_that_others_can_use_is_refused() {
    let world = World::new();
    drop(world.open(PLENTY).expect("a folder"));
    for mode in [0o770, 0o702, 0o755] {
        fs::set_permissions(world.path(), fs::Permissions::from_mode(mode)).expect("ours");
        let refused = world.open(PLENTY);
        assert!(matches!(refused, Err(Unusable::Unfit(Unfit::Mode))), "{mode:o}: {refused:?}");
    }
    fs::remove_dir_all(world.path()).expect("ours");
    fs::write(world.path(), b"a file").expect("written");
    assert!(matches!(world.open(PLENTY), Err(Unusable::Unfit(_))));
}

#[test]
fn a_key_that_others_may_know_or_that_is_damaged_is_replaced_and_opens_nothing_old() {
    let damages: [fn(&Path); 3] = [
        |key| fs::write(key, b"short").expect("written"),
        |key| fs::write(key, [0; 64]).expect("written"),
        |key| fs::set_permissions(key, fs::Permissions::from_mode(0o644)).expect("ours"),
    ];
    for damage in damages {
        let world = World::new();
        world.open(PLENTY).expect("a folder").keep(&world.entry(1), &world.code());
        let before = fs::read(key_of(&world)).expect("a key");
        damage(&key_of(&world));
        let folder = world.open(PLENTY).expect("a folder");
        assert_ne!(fs::read(key_of(&world)).expect("a key"), before);
        assert!(folder.find(&world.entry(1)).is_none());
        folder.keep(&world.entry(1), &world.code());
        assert!(folder.find(&world.entry(1)).is_some());
    }
}

#[test]
fn entries_that_were_used_longest_ago_are_removed_first() {
    let world = World::new();
    let size = world.code().size().expect("its size") + TRAILER_BYTES as u64;
    let folder = world.open(3 * size).expect("a folder");
    for nth in 1..=3 {
        folder.keep(&world.entry(nth), &world.code());
        // The time of the file is the disk's own until it is used.
        assert!(folder.find(&world.entry(nth)).is_some());
    }
    assert!(folder.find(&world.entry(1)).is_some(), "used again");
    folder.keep(&world.entry(4), &world.code());
    let there: Vec<u8> = (1..=4).filter(|nth| world.file(*nth).exists()).collect();
    assert_eq!(there, [1, 3, 4]);
    // An entry that is larger than the folder may be is not kept.
    let small = world.open(size - 1).expect("a folder");
    small.keep(&world.entry(5), &world.code());
    assert!(!world.file(5).exists());
}

#[test]
fn a_file_that_a_crash_left_half_written_is_removed_later() {
    let world = World::new();
    let folder = world.open(PLENTY).expect("a folder");
    let half = world.path().join(format!(".0000000000000001{NEW}"));
    fs::write(&half, b"half").expect("written");
    folder.keep(&world.entry(1), &world.code());
    let now = fs::metadata(&half).expect("there").modified().expect("a time");
    let millis = now.duration_since(SystemTime::UNIX_EPOCH).expect("later").as_millis();
    let later = i64::try_from(millis).expect("not as late") + 2 * 3_600_000;
    world.clock.0.store(later, Ordering::SeqCst);
    folder.keep(&world.entry(2), &world.code());
    assert!(!half.exists() && world.file(1).exists());
}

#[test]
fn hosts_that_open_a_new_folder_at_the_same_time_share_its_key() {
    let world = World::new();
    let entries: Vec<Entry> = (0..8).map(|nth| world.entry(nth)).collect();
    std::thread::scope(|scope| {
        for entry in &entries {
            let world = &world;
            scope.spawn(move || {
                world.open(PLENTY).expect("a folder").keep(entry, &world.code());
            });
        }
    });
    let folder = world.open(PLENTY).expect("a folder");
    for entry in &entries {
        assert!(folder.find(entry).is_some());
    }
    // Nothing that was being written is left.
    let left = folder.folder.files().filter(|file| file.name.ends_with(NEW)).count();
    assert_eq!(left, 0);
}
