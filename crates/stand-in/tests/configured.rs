//! A machine that was configured, in a process of its own.

mod rig;

use libloading::Library;
use rig::*;

#[test]
fn a_machine_is_configured_before_it_is_made_and_not_after() {
    let file = sidestream_stand_in::library().unwrap();
    // SAFETY: it is the stand-in, and the function has this type.
    let configure = unsafe {
        let library = Box::leak(Box::new(Library::new(file).unwrap()));
        library.get::<extern "C" fn(u32, u64, u64) -> i32>(b"sidestream_stand_in_configure")
    };
    let configure = configure.unwrap();
    let d = load();
    let (mut at, mut other, mut count, mut free, mut all) = (0, 0, 0, 0, 0);
    // SAFETY: the pointers are to local variables.
    unsafe {
        assert_eq!((d.cuDeviceGetCount)(&mut count), 3, "not initialised");
        assert_eq!((d.cuMemAlloc_v2)(&mut at, 8), 3);
        ok((d.cuDriverGetVersion)(&mut count));
        assert_eq!((d.cuInit)(1), 1);
        assert_eq!(configure(0, 0, 0), 1);
        assert_eq!(configure(17, 0, 0), 1);
        assert_eq!(configure(3, 0, 0), 0);
        assert_eq!(configure(1, 42, 1 << 20), 0);
        let rig = Rig::new();
        assert_eq!(configure(2, 0, 0), 1);
        assert_eq!(rig.contexts.len(), 1);
        ok((d.cuMemGetInfo_v2)(&mut free, &mut all));
        assert_eq!((free, all), (1 << 20, 1 << 20));
        ok((d.cuMemAlloc_v2)(&mut at, 1 << 19));
        assert_eq!((d.cuMemAlloc_v2)(&mut other, (1 << 19) + 1), 2);
        ok((d.cuMemFree_v2)(at));
        ok((d.cuMemAlloc_v2)(&mut at, 1 << 20));
    }
}
