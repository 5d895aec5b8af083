"""What a user types: `python main.py --model derpp_sbs --dataset seq-cifar100`."""

from mammoth_sbs.commands.run import main

if __name__ == "__main__":
    main()
