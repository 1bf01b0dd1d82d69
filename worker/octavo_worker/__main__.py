from octavo_worker.cli import main

main()
